"""What can be deleted: judged candidates, generation, diagnosis, SuperKernel, the doctor, Ray."""
