"""Doctor: is this host the one that a profile's runtime was made for? Every answer is a value."""
