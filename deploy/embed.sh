# Prints a C++ file that defines a function with the texts of files.
# Arguments: header, type of a file (path and text), function, beginning of the paths that is left out, the files.
header=$1 type=$2 function=$3 prefix=$4
shift 4
printf '#include "%s"\n\nnamespace nibble {\n\n' "$header"
printf 'absl::Span<const %s> %s() {\n  static constexpr %s kFiles[] = {\n' "$type" "$function" "$type"
for file in "$@"; do
  printf '{"%s", R"nibble(' "${file#"$prefix"}"
  cat "$file"
  printf ')nibble"},\n'
done
printf '  };\n  return kFiles;\n}\n\n}  // namespace nibble\n'
