# The Python scripts of this folder as headers in the build of the including folder.
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/LazyEmbed.cmake")
lazy_embed(parquet_script.h kReadParquet "${CMAKE_CURRENT_LIST_DIR}/corpus/read_parquet.py")
lazy_embed(tokenizers_script.h kRunTokenizers "${CMAKE_CURRENT_LIST_DIR}/tokenizers/run_tokenizers.py")
