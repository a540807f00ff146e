"""How maps are fitted: optimisers, smooth regressions, cross-validation."""
