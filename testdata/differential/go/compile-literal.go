package main

type t struct{ a int }

func f() (int, error) { return 1 }

func main() {
	x := t{b: 1, a: "s"}
	f().y()
	for i := range 3 {
	}
	break
	goto nowhere
}
