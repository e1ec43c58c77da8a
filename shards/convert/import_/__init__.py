"""Make a shard set from token files of other projects; `import_set.import_set` is the entry point."""
