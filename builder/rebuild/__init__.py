"""Building a published artifact again from its own provenance, and saying whether it is the same.

* `published`: what the artifact is and what it says it was made of;
* `changes`: what of that this checkout does not have;
* `making`: the wheel once more, in a workspace of its own;
* `verdict`: the outcome as an in-toto statement that refers to the artifact;
* `backlog`: which artifacts of a store are still to be built again.
"""
