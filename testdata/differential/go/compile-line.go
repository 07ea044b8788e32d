package main

//line generated.tmpl:40
func main() {
	undefined()
}
