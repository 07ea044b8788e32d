package main

var a = b

var b = a

func main() {}
