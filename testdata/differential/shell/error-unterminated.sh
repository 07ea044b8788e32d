echo before
echo "no end
