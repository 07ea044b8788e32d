package main

func main() {
	undefined0()
	undefined1()
	undefined2()
	undefined3()
	undefined4()
	undefined5()
	undefined6()
	undefined7()
	undefined8()
	undefined9()
	undefined10()
	undefined11()
	undefined12()
	undefined13()
	undefined14()
}
