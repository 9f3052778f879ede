# Writes parquet_script.h and tokenizers_script.h, which hold Python scripts of this folder, into the build of the
# including folder: the program carries the scripts, so there is no file to find.
set(here "${CMAKE_CURRENT_LIST_DIR}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/corpus/read_parquet.py"
                                                               "${here}/tokenizers/run_tokenizers.py")
file(READ "${here}/corpus/read_parquet.py" READ_PARQUET)
configure_file("${here}/corpus/parquet_script.h.in" parquet_script.h @ONLY)
file(READ "${here}/tokenizers/run_tokenizers.py" RUN_TOKENIZERS)
configure_file("${here}/tokenizers/tokenizers_script.h.in" tokenizers_script.h @ONLY)
