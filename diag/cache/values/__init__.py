"""What a cached value is, what is normal in its family, and what is odd about it. Decides; talks to nobody."""
