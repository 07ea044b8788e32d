package main

import "example.com/none/there"

func main() { there.Do() }
