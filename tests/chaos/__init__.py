"""Faults on real processes, and the judgement of what clients saw meanwhile."""
