package main

func main() {
	var x int = "[a.cgo1.go:1] *_Ctype_x"
	_ = x
}
