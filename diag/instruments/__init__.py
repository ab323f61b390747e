"""What collectors look with: one GET, one dump, one tool beside the window, sockets in another namespace. They only look."""
