"""Masked diffusion: a canvas, a denoiser, a policy that says which slots to commit."""
