"""What the stories share: the script of a story, its processes, what they saw, and the proof.

A story is a module of ``simulations`` that can be run alone, ``python -m simulations.duplicates``;
``STORIES.md`` lists them. Nothing in this package knows a story.
"""
