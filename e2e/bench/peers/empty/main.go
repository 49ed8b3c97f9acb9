// Command empty does nothing: what every Go program costs to start.
package main

func main() {}
