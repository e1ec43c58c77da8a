"""Token files of other projects made into a shard set; `import_set.import_set` is the whole of it."""
