"""What every part of the zoo builds on and that knows none of them."""
