"""One file or folder for each opinion about the place of a job."""
