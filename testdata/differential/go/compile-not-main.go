package other

func main() {}
