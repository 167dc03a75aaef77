"""The Hugging Face Hub, through huggingface_hub: its cache, its token, its settings.

reference   what a name such as org/repo:Q4_K_M or a web address means
listing     which files a repository holds at a revision
remote      ranges of a file, without downloading it
download    whole files into huggingface_hub's cache
folder      a folder, or the files of a repository
errors      what huggingface_hub raises, in one line with the next step
"""

from gguf2st.hub.folder import local_folder

__all__ = ["local_folder"]
