"""One command as all workers of a job on this machine: started, watched, started again, ended."""
