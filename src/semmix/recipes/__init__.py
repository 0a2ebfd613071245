"""Recipes: functions that return full configs, and `fit`, which walks the whole path."""
