// Command armature renders AI-agent platforms at GitOps time.
package main

func main() {}
