x=v; cat <<E
a $x $(echo sub) \$x `echo bt`
E
cat <<'E'
a $x
E
cat <<-E
	tab gone
E
cat <<< "here $x"
