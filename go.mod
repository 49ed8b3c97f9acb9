module github.com/armature-dev/armature

go 1.26.0
