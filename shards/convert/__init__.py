"""Other layouts in and out: `export.export_set` writes them, `import_set.import_set` makes sets from them."""
