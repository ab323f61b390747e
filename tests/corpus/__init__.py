"""The corpus: every sample with what must be found in it, and how well the rules do on all of them (`make corpus`)."""
