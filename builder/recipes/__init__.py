"""Recipes: how the wheel of a profile comes about, as data plus one script for the container."""

from __future__ import annotations

from builder.recipes.model import Recipe, recipe, recipes

__all__ = ["Recipe", "recipe", "recipes"]
