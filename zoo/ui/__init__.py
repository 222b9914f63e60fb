"""The local web page: `zoo ui`. It knows recipes and run folders, and no system's insides."""
