package main

func other() {}
