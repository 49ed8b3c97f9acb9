grep -q dist-packages Dockerfile && echo one test passed
