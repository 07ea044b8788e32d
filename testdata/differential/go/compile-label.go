package main

func main() {
	for {
		goto missing
	}
	break
}
