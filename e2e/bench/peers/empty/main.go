// Command empty does nothing. It measures what every Go program costs to start.
package main

func main() {}
