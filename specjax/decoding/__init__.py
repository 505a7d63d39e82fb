"""From names to decoded text: the loaded model, the builder of parts, the two decoders."""
