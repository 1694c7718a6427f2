"""Images and texts as one stream of samples: sources, bundled samples, images, tokenizer."""
