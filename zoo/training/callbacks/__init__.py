"""What happens every n steps."""
