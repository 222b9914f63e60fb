"""Flow matching: class-conditional images from noise along straight paths (Lipman et al., 2023), with guidance."""
