"""Models in the forms of other programs: folders of transformers, which are read, too, and files of llama.cpp."""
