package main

func main() {
	done := make(chan int)
	go func() {
		var p *int
		*p = 1
		done <- 1
	}()
	<-done
}
