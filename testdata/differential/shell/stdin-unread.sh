echo did not read
