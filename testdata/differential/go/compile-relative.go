package main

import "./beside"

func main() { beside.Do() }
