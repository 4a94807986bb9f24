"""What every room of the package uses: checks of arguments, files, progress bars, threads."""
