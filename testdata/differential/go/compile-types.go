package main

func f(n int) string { return n }

func main() {
	var s string = 1
	f("x", s)
	undefined()
}
