"""Other layouts of a set's tokens: `export.export_set` writes them."""
