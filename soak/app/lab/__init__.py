"""What `soak lab drill`, `soak lab matrix` and `soak lab trials` do. Open `drills` first."""
