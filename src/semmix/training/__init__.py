"""The two visible loops, classifier and generator, and what they share."""
