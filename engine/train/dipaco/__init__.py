"""Training of DiPaCo: documents, recipe, path workers, outer steps, report."""
